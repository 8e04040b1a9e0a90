"""Requests read from protobuf and checked, field by field."""
