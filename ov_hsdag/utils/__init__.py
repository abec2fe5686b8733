"""What every layer uses: files, errors, timing, names of OpenVINO's API."""
