/* hang: loaded before a server by test_watchdog.py. Once the file named by HANG_FILE is there, the thread called
 * "engine" never comes back from asking for the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    char name[16] = "";
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    pthread_getname_np(pthread_self(), name, sizeof name);
    const char *file = strcmp(name, "engine") == 0 ? getenv("HANG_FILE") : NULL;
    while (file && access(file, F_OK) == 0) pause();
    return real(clock, at);
}
