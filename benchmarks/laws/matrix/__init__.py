"""The matrix of request options and drafters: whether outputs are equal, and how many steps drafting saves."""
