"""``serve``, PID 1 of the box: what runs, and how it is started, watched, restarted and drained.

- The start and the clean end: :mod:`start`; what must end before it: :mod:`preparation`.
- The event loop: :mod:`loop`. Its rules, without a process: :mod:`process_manager`, which acts through its
  ``ProcessBackend``.
- Real processes: :mod:`processes` (commands, probes, signals).
- Those of Python models: :mod:`model_processes` finds them, :mod:`model_process_monitor` judges them.
- The public port: :mod:`ports`, :mod:`nginx`.
"""
