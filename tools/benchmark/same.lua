-- wrk: the same request every time, 2 KB of JSON
wrk.method = "POST"
wrk.body = '{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"' .. string.rep("x", 1960) .. '"}]}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "application/json"
wrk.headers["User-Agent"] = "OpenAI/Python 1.99.0"
wrk.headers["Authorization"] = "Bearer sk-0123456789abcdef0123456789abcdef"
wrk.headers["X-Stainless-Lang"] = "python"
wrk.headers["X-Request-Id"] = "0123456789abcdef"

done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('WRK {"requests":%d,"bad":%d,"lost":%d,"us":%d,"p50_us":%d}\n', summary.requests, e.status,
    e.connect + e.read + e.write + e.timeout, summary.duration, latency:percentile(50)))
end
