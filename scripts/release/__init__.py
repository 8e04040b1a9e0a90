"""The making and checking of a release: wheels, their trial, licences, the list of their parts (SBOM), the tag."""
