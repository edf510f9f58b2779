# cython: language_level=3
"""Ways in which Cython's functions, which have no Python frame, call Python's. pystacks.py --modules makes shapes of them."""


cdef object inner(object function):
    return function()


def plain(function):
    return function()


def nested(function):
    return inner(lambda: inner(function))


cdef class Caller:
    cdef object function

    def __init__(self, function):
        self.function = function

    def __call__(self):
        return self.function()

    @property
    def value(self):
        return inner(self.function)

    def __getitem__(self, key):
        return self.function()

    def __lt__(self, other):
        self.function()
        return True

    cpdef method(self):
        return inner(self.function)


def generator(function):
    yield function()
    yield inner(function)


async def coroutine(function, pause):
    function()
    await pause()
    inner(function)


def guarded(function):
    try:
        raise ValueError
    except ValueError:
        function()
    finally:
        inner(function)
