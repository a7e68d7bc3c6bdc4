"""The bug museum: short training scripts that look right and are not, and two ranks to run them on."""
