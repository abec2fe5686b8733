"""Commands on other machines: what a machine has, a command as a job, and Ray, which brings the two together."""
