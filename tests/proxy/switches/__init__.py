"""Tests of the switches."""
