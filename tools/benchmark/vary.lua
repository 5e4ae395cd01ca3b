-- wrk: 256 lengths of body and an id that no other request has; "vary" asks the replica for heads that differ too
dofile(os.getenv("BENCH_SAME_LUA"))
local before, after, number = {}, {}, 0

init = function(args)
  wrk.headers["X-Request-Id"] = "@@@@"
  for i = 1, 256 do
    wrk.body = '{"vary":true,"messages":[{"role":"user","content":"' .. string.rep("x", 900 + i * 8) .. '"}]}'
    local text = wrk.format()
    local from, to = text:find("@@@@", 1, true)
    before[i], after[i] = text:sub(1, from - 1), text:sub(to + 1)
  end
end

request = function()
  number = number + 1
  local i = number % 256 + 1
  return before[i] .. string.format("%016x", number) .. after[i]
end
