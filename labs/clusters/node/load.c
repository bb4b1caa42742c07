/* A workload that does what a file says: `load FILE`, where FILE holds "CPU_MILLI MEMORY_MIB" and may change at any time.

   One process per CPU of the machine computes for its part of each 10 ms; the first one also holds the memory, written to, so
   that it counts. A file that is missing or cannot be read means no load. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_US = 10000, SLICES_PER_LOOK = 5 };

struct wanted {
    long cpu_milli, memory_mib;
};

static struct wanted look(const char *path) {
    struct wanted found = {0, 0};
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return found;
    if (fscanf(file, "%ld %ld", &found.cpu_milli, &found.memory_mib) != 2)
        found = (struct wanted){0, 0};
    fclose(file);
    return found;
}

static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static void work(long busy_us) {
    long until = now_us() + busy_us;
    while (now_us() < until) {
    }
    if (busy_us < SLICE_US)
        usleep((useconds_t)(SLICE_US - busy_us));
}

static void hold(long mib) {
    static char *held = NULL;
    static long held_mib = 0;
    if (mib == held_mib)
        return;
    if (held != NULL)
        munmap(held, (size_t)held_mib << 20);
    held = NULL;
    held_mib = mib;
    if (mib <= 0)
        return;
    held = mmap(NULL, (size_t)mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held == MAP_FAILED) {
        held = NULL;
        return;
    }
    memset(held, 1, (size_t)mib << 20);
}

static void serve(const char *path, long index) {
    for (;;) {
        struct wanted wanted = look(path);
        long share = wanted.cpu_milli - index * 1000;
        share = share < 0 ? 0 : share > 1000 ? 1000 : share;
        if (index == 0)
            hold(wanted.memory_mib);
        for (int slice = 0; slice < SLICES_PER_LOOK; slice++)
            work(share * SLICE_US / 1000);
    }
}

static void end(int number) { (void)number; _exit(0); }

int main(int count, char **words) {
    if (count != 2) {
        fprintf(stderr, "usage: load FILE\n");
        return 2;
    }
    signal(SIGTERM, end); /* the first process of a container has no default for signals */
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    for (long index = 1; index < cpus; index++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            serve(words[1], index);
        }
    serve(words[1], 0);
}
