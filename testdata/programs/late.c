// liblate.so: is loaded by oddframes, and reports while it is loaded.
long report(void);

__attribute__((constructor)) static void loaded(void) {
    long now = report();
    __asm__ volatile("" : "+r"(now));
}

__attribute__((noipa)) long late_call(long (*callback)(void)) {
    long now = callback();
    __asm__ volatile("" : "+r"(now));
    return now;
}
