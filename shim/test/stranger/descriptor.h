/* Sends a descriptor to another process in a message of one byte, and receives it. */
#ifndef RATION_TEST_DESCRIPTOR_H
#define RATION_TEST_DESCRIPTOR_H

#include <string.h>
#include <sys/socket.h>

#include "check.h"

union descriptor_control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

static inline void descriptor_send(int socket, int fd)
{
	union descriptor_control control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec body = {"", 1};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	EQ(sendmsg(socket, &m, 0), 1);
}

static inline int descriptor_receive(int socket)
{
	union descriptor_control control;
	char byte;
	struct iovec body = {&byte, 1};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int fd = -1;
	EQ(recvmsg(socket, &m, 0), 1);
	if (CMSG_FIRSTHDR(&m) != NULL)
		memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
	return fd;
}

#endif
