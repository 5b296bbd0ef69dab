"""Tests of the calls to other systems."""
