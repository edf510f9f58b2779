// Layouts of struct cudaDeviceProp (driver_types.h of CUDA 11.7, 12.4 and 13.0). Name, UUID and total memory are at the
// same place in all.
#include "runtime.h"

#define COMMON                                                                                                         \
    {296, 8, 1}, {304, 12, 0}, {308, 10, 0}, {312, 11, 1}, {320, 1, 0}, {324, 2, 0}, {328, 3, 0}, {332, 4, 0},         \
        {336, 5, 0}, {340, 6, 0}, {344, 7, 0}, {352, 9, 1}, {360, 75, 0}, {364, 76, 0}, {368, 14, 1}, {376, 51, 1}

// Version 12 only appends to version 11.
static const struct field fields_11[] = {
    COMMON,       {348, 13, 0}, {388, 16, 0}, {396, 18, 0}, {400, 19, 0},  {576, 31, 0},  {584, 33, 0}, {588, 34, 0},
    {592, 50, 0}, {600, 40, 0}, {604, 41, 0}, {608, 36, 0}, {612, 37, 0},  {616, 38, 0},  {624, 39, 0}, {640, 81, 1},
    {648, 82, 0}, {652, 83, 0}, {688, 95, 0}, {696, 97, 1}, {712, 106, 0}, {720, 111, 1}, {0, 0, 0},
};
// Version 13 dropped the clocks, the compute mode and a few flags.
static const struct field fields_13[] = {
    COMMON,       {384, 16, 0}, {388, 18, 0},  {392, 19, 0},  {560, 31, 0},  {568, 33, 0}, {572, 34, 0}, {576, 50, 0},
    {584, 40, 0}, {588, 41, 0}, {592, 37, 0},  {596, 38, 0},  {604, 39, 0},  {624, 81, 1}, {632, 82, 0}, {636, 83, 0},
    {668, 95, 0}, {672, 97, 1}, {688, 106, 0}, {696, 111, 1}, {720, 115, 0}, {0, 0, 0},
};
const struct layout properties_11 = {728, fields_11};
const struct layout properties_12 = {1032, fields_11};
const struct layout properties_13 = {1008, fields_13};
