/* A SPANK plugin: the tasks of a Slurm job start in the job's ration.
 *
 * slurmstepd calls it in each new task, as root, before that becomes the user. It gives the task a
 * mount namespace of its own and has the script `task` put the ration there. The prolog has made
 * the ration, or written down why not; what there is to decide is decided in the scripts.
 *
 * In plugstack.conf: required /usr/lib/ration/slurm/spank_ration.so [SCRIPT] */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <slurm/spank.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(ration, 1);

#define TASK_SCRIPT "/usr/lib/ration/slurm/task"

enum answer { ANSWER_NONE = 0, ANSWER_JOIN = 3 }; /* exit statuses of `task ask`; all others refuse */

static char option_size[16]; /* of --ration-mem, in slurmstepd; written before any task is made */

/* The value goes to the prolog, in its environment, and is checked there. */
static int option_mem(int value, const char *size, int remote)
{
	(void)value;
	size_t digits = size ? strspn(size, "0123456789") : 0;
	if (digits && digits <= 9 && strspn(size + digits, "mMgG") == 1 && !size[digits + 1]) {
		snprintf(option_size, sizeof option_size, "%s", size);
		return ESPANK_SUCCESS;
	}
	if (!remote)
		slurm_error("--ration-mem=%s: not a size (use a number with m or g, like 10g)", size ? size : "");
	return ESPANK_BAD_ARG;
}

struct spank_option spank_options[] = {
	{(char *)"ration-mem", (char *)"SIZE",
	 (char *)"GPU memory on each node, like 10g: at most what the shards of --gres=shard are worth", 1, 0, option_mem},
	SPANK_OPTIONS_TABLE_END,
};

/* sbatch and salloc take no options from the table, only those that are registered. */
int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argc, (void)argv;
	return spank_context() == S_CTX_ALLOCATOR ? spank_option_register(spank, spank_options) : ESPANK_SUCCESS;
}

/* script_read reads what the script says, as one line. */
static void script_read(int fd, char *text, size_t size)
{
	size_t n = 0;
	ssize_t got;
	while (n + 1 < size && ((got = read(fd, text + n, size - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
		n += got > 0 ? (size_t)got : 0;
	while (n && text[n - 1] == '\n')
		n--;
	text[n] = 0;
	for (char *c = text; *c; c++)
		if (*c == '\n')
			*c = ' ';
}

/* script_run runs the script, and returns its exit status, or -1. text is what it says. */
static int script_run(const char *script, const char *verb, uint32_t job, char *text, size_t size)
{
	char number[16];
	snprintf(number, sizeof number, "%u", job);
	char *args[] = {(char *)script, (char *)verb, number, option_size, NULL};
	char *none[] = {NULL}; /* the scripts make their environment themselves */
	int said[2], status;
	snprintf(text, size, "%s does not run", script);
	if (pipe2(said, O_CLOEXEC))
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		sigset_t all;
		sigemptyset(&all);
		sigprocmask(SIG_SETMASK, &all, NULL);
		if (dup2(said[1], 1) >= 0 && dup2(said[1], 2) >= 0)
			execve(script, args, none);
		_exit(127);
	}
	close(said[1]);
	if (pid > 0)
		script_read(said[0], text, size);
	close(said[0]);
	if (pid < 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	if (!*text)
		snprintf(text, size, "%s ended with status %d", script, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* refuse ends the task, which this process is. An error of the plugin would not do: slurmstepd logs it,
 * also of a required plugin, and starts the task. */
static int refuse(const char *why)
{
	slurm_error("ration: this task is not started: %s", why);
	_exit(1);
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	const char *script = argc > 0 ? argv[0] : TASK_SCRIPT;
	char text[1024];
	uint32_t job;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return refuse("Slurm does not tell which job it is of");
	switch (script_run(script, "ask", job, text, sizeof text)) {
	case ANSWER_NONE: return ESPANK_SUCCESS;
	case ANSWER_JOIN: break;
	default: return refuse(text);
	}
	if (unshare(CLONE_NEWNS)) {
		snprintf(text, sizeof text, "making a mount namespace: %s", strerror(errno));
		return refuse(text);
	}
	return script_run(script, "join", job, text, sizeof text) ? refuse(text) : ESPANK_SUCCESS;
}
