-- wrk sends one request again and again, and looks at every answer: its status, and what it must contain.
-- Arguments: the file of the body, the file of what the answer must contain, then the headers, "Name: value".
-- At the end one line of JSON on standard output; times in seconds.

wrong = 0

local function content(path)
   local file = assert(io.open(path, "rb"))
   local text = file:read("*a")
   file:close()
   return text
end

local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init(arguments)
   local headers = {}
   for index = 3, #arguments do
      local name, value = arguments[index]:match("^([^:]+): (.*)$")
      headers[name] = value
   end
   -- Made once: what is sent is the same each time.
   local whole = wrk.format("POST", nil, headers, content(arguments[1]))
   local expected = content(arguments[2])
   request = function() return whole end
   response = function(status, _, body)
      if status ~= 200 or not body:find(expected, 1, true) then
         wrong = wrong + 1
      end
   end
end

function done(summary, latency, _)
   local failed = 0
   for _, thread in ipairs(threads) do
      failed = failed + thread:get("wrong")
   end
   local errors = summary.errors
   local lost = errors.connect + errors.read + errors.write + errors.timeout
   local line = '{"answers": %d, "wrong": %d, "lost": %d, "seconds": %.6f, '
      .. '"p50": %.6f, "p90": %.6f, "p99": %.6f, "max": %.6f}\n'
   io.stdout:write(line:format(summary.requests - failed, failed, lost, summary.duration / 1e6,
      latency:percentile(50) / 1e6, latency:percentile(90) / 1e6, latency:percentile(99) / 1e6, latency.max / 1e6))
end
