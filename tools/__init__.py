"""For developers: wheels, the page of reports, scripts that show faults of OpenVINO. It is not in the wheel."""
