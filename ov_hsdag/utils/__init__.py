"""What every room uses: files, errors, timing, names of OpenVINO's API."""
