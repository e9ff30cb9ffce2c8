#define _GNU_SOURCE
#include "faults.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "knobs.h"
#include "report.h"

struct fault {
    char name[64];
    unsigned long at;    /* 0: every call */
    unsigned long calls; /* so far */
    CUresult code;
    bool die, after;
};

enum { MAX_FAULTS = 16 };

bool faults_are_armed;
static struct fault faults[MAX_FAULTS];
static unsigned count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* NAME:COUNT[:EXTRA] */
static int parse_one(char *text, bool die, struct fault *f)
{
    char *save = NULL;
    char *name = strtok_r(text, ":", &save);
    char *at = strtok_r(NULL, ":", &save);
    char *extra = strtok_r(NULL, ":", &save);
    char *end;

    if (name == NULL || at == NULL || strlen(name) >= sizeof f->name)
        return -1;
    *f = (struct fault){.code = CUDA_ERROR_OUT_OF_MEMORY, .die = die};
    strcpy(f->name, name);
    f->at = strtoul(at, &end, 10);
    if (end == at || *end != '\0')
        return -1;
    if (extra == NULL)
        return 0;
    if (die) {
        f->after = strcmp(extra, "after") == 0;
        return f->after || strcmp(extra, "before") == 0 ? 0 : -1;
    }
    f->code = (CUresult)strtoul(extra, &end, 10);
    return *end == '\0' ? 0 : -1;
}

static void parse(const char *knob, bool die)
{
    const char *value = getenv(knob);
    char *copy, *save = NULL;

    if (value == NULL || (copy = strdup(value)) == NULL)
        return;
    for (char *one = strtok_r(copy, ",", &save); one != NULL; one = strtok_r(NULL, ",", &save)) {
        if (count == MAX_FAULTS || parse_one(one, die, &faults[count]) != 0)
            report_note("%s=%s cannot be read (try cuMemAlloc:3)", knob, value);
        else
            count++;
    }
    free(copy);
}

static void load(void)
{
    parse("FAKEGPU_FAIL", false);
    parse("FAKEGPU_DIE", true);
    store_relaxed(&faults_are_armed, count > 0 || knobs()->latency_us > 0);
}

void faults_load(void) { pthread_once(&once, load); }

/* A sleep is good for no less than some 60 us, so the last stretch is spun. */
static void delay(unsigned us)
{
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += (long)(us % 1000000) * 1000;
    end.tv_sec += us / 1000000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (us > 200)
        nanosleep(&(struct timespec){(us - 100) / 1000000, (long)((us - 100) % 1000000) * 1000}, NULL);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

CUresult fault_before(const char *name, bool *die_after)
{
    CUresult result = CUDA_SUCCESS;
    if (knobs()->latency_us > 0)
        delay(knobs()->latency_us);
    for (unsigned i = 0; i < count; i++) {
        struct fault *f = &faults[i];
        if (strcmp(f->name, name) != 0)
            continue;
        if (add_relaxed(&f->calls, 1) != f->at && f->at != 0)
            continue;
        if (f->die && !f->after)
            die();
        if (f->die)
            *die_after = true;
        else
            result = f->code;
    }
    return result;
}

CUresult fault_after(CUresult result, bool die_after)
{
    if (die_after)
        die();
    return result;
}
