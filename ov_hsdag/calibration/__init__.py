"""Device profiles and costs of models, measured on the machine."""
