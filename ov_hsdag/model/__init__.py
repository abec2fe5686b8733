"""OpenVINO models as graphs: their legality, shapes and inputs, and placements with their storage."""
