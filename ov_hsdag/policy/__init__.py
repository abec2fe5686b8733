"""The learned policy, without torch."""
