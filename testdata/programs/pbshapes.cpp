// Ways in which pybind11's functions call Python's. pystacks.py --modules makes shapes of them.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <functional>
#include <stdexcept>
#include <thread>

namespace py = pybind11;

struct Caller {
	virtual ~Caller() = default;
	virtual int act() { return 0; }
	int twice() { return act() + act(); }
};

// What Python's classes that derive from Caller are.
struct Derived : Caller {
	using Caller::Caller;
	int act() override { PYBIND11_OVERRIDE(int, Caller, act); }
};

static void unwound(const py::function &function)
{
	struct Last {
		const py::function &function;
		~Last() { function(); }
	};
	try {
		Last last{function};
		throw std::runtime_error("unwound");
	} catch (const std::runtime_error &) {
		function();
	}
}

PYBIND11_MODULE(pbshapes, m)
{
	m.def("plain", [](const py::function &function) { return function(); });
	m.def("converted", [](const std::function<int()> &function) { return function(); });
	m.def("released", [](const py::function &function) {
		py::gil_scoped_release release;
		py::gil_scoped_acquire acquire;
		return function();
	});
	m.def("on_thread", [](const py::function &function) {
		py::gil_scoped_release release;
		std::thread([&] {
			py::gil_scoped_acquire acquire;
			function();
		}).join();
	});
	m.def("unwound", unwound);
	py::class_<Caller, Derived>(m, "Caller").def(py::init<>()).def("act", &Caller::act).def("twice", &Caller::twice);
}
