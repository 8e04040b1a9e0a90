"""Reads requests from protobuf and checks them field by field."""
