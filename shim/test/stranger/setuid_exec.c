/* A process that becomes a set-uid program holds nothing of the device any more, and nobody
 * may look into it to see that: its bytes are there for others all the same. What that
 * looks like to the others is a process of the same PID and start whose maps they cannot
 * read; such a program is one that says it must not be looked into. */
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>

#include "stranger.h"

/* Without root's rights, as an ordinary user is. */
static void drop_rights(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    EQ(syscall(SYS_capset, &head, none), 0);
}

static int ready[2], over[2];

/* What it became: no CUDA, nothing to see. Both pipes were handed down. */
static int stranger(int to, int from)
{
    char byte;
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (write(to, "", 1) != 1)
        return 1;
    return read(from, &byte, 1) == 0 ? 0 : 1;
}

static void become(void)
{
    CUdeviceptr p;
    char to[12], from[12];
    start();
    OK(cuMemAlloc_v2(&p, 600 * MIB));
    snprintf(to, sizeof to, "%d", ready[1]);
    snprintf(from, sizeof from, "%d", over[0]);
    close(over[1]);
    unsetenv("LD_PRELOAD"); /* which a set-uid program does without */
    execl("/proc/self/exe", "setuid_exec", to, from, (char *)NULL);
    _exit(127);
}

int main(int argc, char **argv)
{
    CUdeviceptr p;
    char byte, path[40];
    int status;
    if (argc > 2)
        return stranger(atoi(argv[1]), atoi(argv[2]));
    EQ(pipe(ready) | pipe(over), 0);
    pid_t pid = fork();
    if (pid == 0)
        become();
    close(ready[1]);
    close(over[0]);
    EQ(read(ready[0], &byte, 1), 1);
    drop_rights();
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    CHECK(open(path, O_RDONLY) < 0 && errno == EACCES); /* or nothing is shown here */
    EQ(kill(pid, 0), 0);
    start();
    OK(cuMemAlloc_v2(&p, 600 * MIB));
    /* The stand-in driver may not look either, and believes that the other lives. */
    EQ(usage_of(0).total, mine());
    EQ(region_used(region_here(), 0), mine());
    close(over[1]);
    EQ(waitpid(pid, &status, 0), pid);
    EQ(status, 0);
    return FINISH();
}
