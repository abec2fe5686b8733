"""Renders the data of `ov_hsdag.explaining.report_data`: as an HTML page, as pictures, and in cells of notebooks."""
