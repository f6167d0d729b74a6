"""Back ends that draw samples: transformers on this machine, vLLM on this machine, or a server that speaks OpenAI's
protocol. One function each: `draw(requests)` yields (request, drawn) in the order in which they come.

What a seed fixes (measured in research/pages/evaluation_measured.md): with transformers and vLLM in this process the
random numbers of a sample depend on its seed alone, not on who shares its batch. What is left is rounding: a matrix
product of another shape may round differently, and where two tokens are within that of each other the answer goes
another way.
A server is sent the seed of each sample; whether it heeds it is the server's.
"""
