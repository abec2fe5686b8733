"""What `ov_hsdag.explaining.report_data` collects, as people see it: an HTML page, pictures, a cell of a notebook."""
