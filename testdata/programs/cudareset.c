// cudacalls --reset: contexts of several devices come and go with memory in them, and addresses and handles come again.
//
// The runtime has the first device. The last, if there is another, is used by the driver alone, which retains and
// releases its primary context.
#include "cudacalls.h"

enum { CREATED = 4, MAXPLACES = 16 + CREATED };

// A place is a context in which memory can be: first the devices' primary ones, then some that are created.
struct place {
    ptr context; // 0: there is none now
    int device, references;
};
static struct place places[MAXPLACES];
static int devices;

static struct { // of own_block(i)
    int place, device;
    enum fate fate;
} tags[BLOCKS];

static void lose(int i) { own_block(i)->parts = 0; }
static void context_ends(int place) {
    for (int i = 0; i < BLOCKS; i++)
        if (tags[i].place == place && tags[i].fate == WITH_CONTEXT) lose(i);
}
static void device_ends(int device) {
    context_ends(device);
    for (int i = 0; i < BLOCKS; i++)
        if (tags[i].device == device && tags[i].fate == WITH_DEVICE) lose(i);
}

static void enter(int place) {
    if (place == 0)
        cudaSetDevice(0);
    else
        cuCtxSetCurrent(places[place].context);
}
static int some_place(void) { // one that has a context
    int place;
    do
        place = (int)draw((unsigned)devices + CREATED);
    while (!places[place].context);
    return place;
}
static void use_block(int i) {
    int place = some_place();
    enter(place);
    if (own_block(i)->parts) {
        if (give(own_block(i))) abort();
        return;
    }
    int n = 0;
    while (fated[n].take)
        n++;
    const struct fated *f = &fated[draw((unsigned)n)];
    if (f->runtime && place) return;
    const struct family family = {"", f->take};
    tags[i].place = place;
    tags[i].device = places[place].device;
    tags[i].fate = f->fate;
    take(own_block(i), &family, 1 + draw(4 << 20));
}

static void create(int place) {
    ptr c;
    places[place].device = (int)draw((unsigned)devices);
    if (DO(cuCtxCreate_v2, &places[place].context, 0, places[place].device))
        places[place].context = 0;
    else
        cuCtxPopCurrent_v2(&c);
}
static void destroy(int place) {
    enter(place); // a thread may destroy its current context
    if (DO(cuCtxDestroy_v2, places[place].context)) return;
    context_ends(place);
    places[place].context = 0;
}
static void use_created(void) {
    int place = devices + (int)draw(CREATED);
    if (places[place].context)
        destroy(place);
    else
        create(place);
}

static void reset_by_runtime(void) {
    enter(0);
    if (!(draw(4) ? DO(cudaDeviceReset) : DO(cudaThreadExit))) device_ends(0);
}
static void reset_by_driver(int device) {
    if (draw(2) ? DO(cuDevicePrimaryCtxReset_v2, device) : DO(cuDevicePrimaryCtxReset, device)) return;
    device_ends(device);
}
static void retain(int device) {
    if (!DO(cuDevicePrimaryCtxRetain, &places[device].context, device)) places[device].references++;
}
static void release(int device) {
    if (DO(cuDevicePrimaryCtxRelease_v2, device)) return;
    if (--places[device].references) return;
    device_ends(device);
    places[device].context = 0;
}
static void use_primary(void) {
    int device = (int)draw((unsigned)devices);
    if (device == 0) return reset_by_runtime();
    switch (draw(4)) {
    case 0:
        return retain(device);
    case 1:
        if (places[device].references > 1) reset_by_driver(device);
        return;
    default:
        if (places[device].references) release(device);
    }
}

void run_reset(int rounds) {
    start_thread();
    if (cuDeviceGetCount(&devices) || devices < 1) exit(1);
    cuCtxGetCurrent(&places[0].context);
    for (int device = 1; device < devices; device++) {
        places[device].device = device;
        retain(device);
    }
    for (int i = 0; i < rounds; i++)
        switch (draw(16)) {
        case 0:
            use_primary();
            break;
        case 1:
            use_created();
            break;
        default:
            use_block((int)draw(BLOCKS));
        }
    for (int place = devices; place < devices + CREATED; place++)
        while (places[place].context)
            destroy(place);
    for (int device = 1; device < devices; device++)
        while (places[device].references)
            release(device);
    enter(0);
}
