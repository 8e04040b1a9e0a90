"""The making and checking of a release: wheels, their trial, licences, the list of what they bring (SBOM), the tag."""
