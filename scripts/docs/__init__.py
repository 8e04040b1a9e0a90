"""The making of the documents: the site, its catalogue of modules, the list of supported models, the picture."""
