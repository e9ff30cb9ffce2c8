/* Steps between processes: memory that one sends to another. */
#ifndef RATION_TEST_WALK_MAIL_H
#define RATION_TEST_WALK_MAIL_H

#include <sys/socket.h>

#include "memory.h"

static void post(struct walker *w, struct thing *t)
{
	struct letter letter = {.kind = NOTHING, .size = t->size, .device = t->device};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec body = {&letter, sizeof letter};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
	int fd = -1, to = (w->process + 1 + (int)below(w, (unsigned)all.processes - 1)) % all.processes;
	if (t->kind == LINEAR && DONE(cuIpcGetMemHandle(&letter.ipc, t->p)))
		letter.kind = OPENED;
	if (t->kind == PHYSICAL && t->memory != 0 &&
	    DONE(cuMemExportToShareableHandle(&fd, t->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
		letter.kind = IMPORTED;
	if (t->kind == POOLED && !w->pool[t->pool].destroyed && DONE(cuMemPoolExportPointer(&letter.pointer, t->p)) &&
	    DONE(cuMemPoolExportToShareableHandle(&fd, w->pool[t->pool].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
		letter.kind = POOL_POINTER;
	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof control;
		control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	}
	if (letter.kind != NOTHING)
		sendmsg(all.mail[to], &m, MSG_DONTWAIT); /* a full box loses the letter, which does no harm */
	if (fd >= 0)
		close(fd);
}

/* The sender of a letter may be dead by now. */
static bool receive(struct walker *w, struct thing *t, int box)
{
	struct letter letter;
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec body = {&letter, sizeof letter};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	CUmemoryPool pool;
	CUresult r = UNKNOWN;
	int fd = -1;
	if (recvmsg(box, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof letter)
		return false;
	if (CMSG_FIRSTHDR(&m) != NULL)
		memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
	*t = (struct thing){.kind = letter.kind, .size = letter.size, .device = enter(w, &t->context), .context = t->context};
	if (t->kind == POOL_POINTER)
		t->device = letter.device; /* with whose last context here it ends */
	all.imported = true;
	if (t->kind == OPENED)
		r = cuIpcOpenMemHandle_v2(&t->p, letter.ipc, 1);
	if (t->kind == IMPORTED)
		r = cuMemImportFromShareableHandle(&t->memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (t->kind == POOL_POINTER &&
	    (r = cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) ==
		    CUDA_SUCCESS) {
		r = cuMemPoolImportPointer(&t->p, pool, &letter.pointer);
		while (!DONE(cuMemPoolDestroy(pool)))
			;
	}
	if (t->kind == IMPORTED && r == CUDA_SUCCESS && below(w, 2))
		t->descriptor = fd + 1;
	else if (fd >= 0)
		close(fd);
	return r == CUDA_ERROR_INVALID_VALUE ? false : good(w, "opening another's memory", r, false);
}

#endif
