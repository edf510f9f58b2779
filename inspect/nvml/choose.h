// choose_library says in which library the functions of NVML are: as for dlopen, less than 4096 bytes.
void choose_library(const char *path);
