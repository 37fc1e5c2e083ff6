"""What a machine is, from what can be seen of it, and which profile fits.

:mod:`~fairlead.detect.gather` asks every probe of ``probes/`` and makes a
:class:`~fairlead.detect.model.SiteFacts` of the answers; :mod:`~fairlead.site.match` holds profiles
against the machine; :mod:`~fairlead.detect.draft` writes a profile of facts, :mod:`~fairlead.detect.drift`
says where profile and facts differ. All of them look through :class:`fairlead.base.system.View`, so
that a recorded machine (:mod:`~tests.recording`) answers as the one we are on does.
"""
