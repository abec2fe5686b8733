"""The learned policy, HSDAG, without torch."""
