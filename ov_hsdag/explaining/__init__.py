"""What runs where in a placed model, what it costs there and elsewhere, and why it is there."""
