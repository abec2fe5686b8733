"""Runs commands on other machines: descriptions of machines, commands as jobs, and Ray, which connects the two."""
