"""``serve``, PID 1 of the box: what runs, and how it is started, watched, restarted and drained.

- The start and the clean end: :mod:`start`, :mod:`ready_message`. The event loop: :mod:`loop`.
- The rules, without a process: :mod:`process_manager`. They act through its ``ProcessBackend``.
- Real processes: :mod:`processes`, :mod:`commands` (how each is started and probed), :mod:`stub_monitor` (how
  those of Python models died).
- The public port: :mod:`ports`, :mod:`front` (nginx), :mod:`unavailable_responder` (while no server answers).
- The log: :mod:`log_lines` (what children print) and :mod:`log_writer` (where it goes).
- :mod:`engines` builds missing TensorRT plans before Triton starts.
"""
