"""Jobs: commands of ov-hsdag that another machine runs, and the files that they read and write."""
