"""The parts of the load generator, from bytes to page.

A run flows one way: `options` says what is wanted, `pace` when requests are due, `jobs` what each one carries; `engine`
sends them through `client` (sockets) and `wire` (what a response is), asks `policy` whether to try again, and writes
one row per request into `book`. When it is over, `results` turns the book into figures with the pure functions of
`stats`, and `text`, `report` (drawn with `charts`, framed by `page`) show them. `scrape` watches the side port
meanwhile.
"""
