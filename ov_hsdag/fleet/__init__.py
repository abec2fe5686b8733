"""Runs jobs (`ov_hsdag.jobs`) on other machines: descriptions of machines, and Ray, which connects the two."""
