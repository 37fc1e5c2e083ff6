"""The probes, one file each: ``probe(world)`` returns values of fields of ``SiteFacts``."""
