"""Device profiles and the costs of models, measured on the machine."""
