"""``serve``, PID 1 of the box: what runs, and how it is started, watched, restarted and drained.

- The start and the clean end: :mod:`start`. The event loop: :mod:`loop`.
- The rules, without a process: :mod:`process_manager` for all children, :mod:`child` for one, :mod:`shutdown`
  for a stop. They act through :mod:`process_backend`.
- Real processes: :mod:`processes`, :mod:`commands` (their command lines), :mod:`probes` (are they ready),
  :mod:`stub_monitor` and :mod:`oom_kills` (how they died), :mod:`signals`, :mod:`watchdog` (cleans up after a
  supervisor that was killed).
- The public port: :mod:`ports`, :mod:`front` (nginx), :mod:`capacity` (its limits), :mod:`certificate_watch`,
  :mod:`unavailable_responder` (while no server answers).
- The log: :mod:`log_lines` (what children print), :mod:`gpu_lines`, :mod:`log_writer` and :mod:`log_file`
  (where it goes), :mod:`ready_message`.
- :mod:`engines` builds missing TensorRT plans before Triton starts. :mod:`demo`: the models of
  ``serve --demo``.
"""
