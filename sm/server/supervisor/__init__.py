"""``serve``, PID 1 of the box: what runs, and how it is started, watched, restarted and drained.

- :mod:`start` puts it all together and cleans up at the end; :mod:`loop` is the one event loop
- the rules, without a process: :mod:`process_manager` of all, :mod:`child` of one, :mod:`shutdown` of a stop;
  what they have done goes through :mod:`process_backend`
- real processes: :mod:`processes`, :mod:`commands` (their command lines), :mod:`probes` (are they
  ready), :mod:`signals`, :mod:`watchdog` (should the supervisor itself be killed)
- the public port: :mod:`ports`, :mod:`front` (nginx), :mod:`unavailable_responder` (while nobody serves it)
- the log: :mod:`log_lines` (what children say), :mod:`log_writer` (where it goes)
- :mod:`demo`: the commands that ``make serve`` ends with
"""
