// Functions with frames of many shapes: frames.c. Each variant has a function that runs all of them, e.g. O2_shapes.
#pragma once

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define VARIANT(name) JOIN(FLAVOR, name)
