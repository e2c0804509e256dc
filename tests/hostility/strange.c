/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostility/strange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

static const char *mounted;
static int server = -1;

/* ---- sockets ---- */

static int listen_somewhere(struct sockaddr_in *address)
{
	socklen_t bytes = sizeof *address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
	*address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if (listener >= 0 && (bind(listener, (struct sockaddr *)address, bytes) || listen(listener, 1) ||
	                      getsockname(listener, (struct sockaddr *)address, &bytes))) {
		close(listener);
		return -1;
	}
	return listener;
}

int strange_lingering(void)
{
	const struct linger day = {1, 86400};
	char bytes[4096] = {0};
	struct sockaddr_in address;
	int small = 4096, listener = listen_somewhere(&address), made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(made, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	if (listener < 0 || connect(made, (struct sockaddr *)&address, sizeof address) ||
	    accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0)
		return -1;
	close(listener);
	while (send(made, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	setsockopt(made, SOL_SOCKET, SO_LINGER, &day, sizeof day);
	return made;
}

static int listening(void)
{
	struct sockaddr_in address;
	int listener = listen_somewhere(&address), peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)!connect(peer, (struct sockaddr *)&address, sizeof address);
	return listener;
}

static int connecting(void)
{
	struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9)};
	int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	inet_pton(AF_INET, "192.0.2.1", &nowhere.sin_addr);
	(void)!connect(made, (struct sockaddr *)&nowhere, sizeof nowhere);
	return made;
}

static void send_one(int through, int descriptor)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &descriptor, sizeof(int));
	(void)!sendmsg(through, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * A pair's end, in whose queue lies what `within` is; negative: the end itself, which garbage collection has to find.
 */
static int pair_with(int within)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return -1;
	send_one(ends[0], within < 0 ? ends[1] : within);
	if (within >= 0)
		close(within);
	close(ends[0]);
	return ends[1];
}

/* ---- others ---- */

static int full_pipe(void)
{
	char bytes[4096] = {0};
	int ends[2];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -1;
	while (write(ends[1], bytes, sizeof bytes) > 0)
		;
	close(ends[0]);
	return ends[1];
}

static int memory(unsigned flags, off_t bytes, int seals)
{
	int made = memfd_create("strange", MFD_CLOEXEC | flags);
	(void)!ftruncate(made, bytes);
	if (seals)
		fcntl(made, F_ADD_SEALS, seals);
	return made;
}

static int watching(int what)
{
	int made = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN};
	epoll_ctl(made, EPOLL_CTL_ADD, what, &event);
	return made;
}

static int ring(void)
{
	struct io_uring_params parameters = {0};
	return (int)syscall(SYS_io_uring_setup, 8, &parameters);
}

static int of_process(void)
{
	return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

static int timer(void)
{
	const struct itimerspec often = {{0, 1000000}, {0, 1000000}};
	int made = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	timerfd_settime(made, 0, &often, NULL);
	return made;
}

static int signals(void)
{
	sigset_t all;
	sigfillset(&all);
	return signalfd(-1, &all, SFD_CLOEXEC);
}

static const char *const names[STRANGE_KINDS] = {
	"TCP socket that lingers", "full pipe", "TCP socket that listens", "TCP socket that connects", "UDP socket",
	"socket pair", "socket that holds its own end", "socket that holds one that lingers", "io_uring",
	"userfaultfd", "memfd", "sealed memfd", "memfd of huge pages", "memfd of a terabyte",
	"pseudo terminal", "epoll of the connection", "eventfd", "timerfd", "inotify", "signalfd", "pidfd",
	"O_PATH of a folder", "folder", "/dev/zero", "the connection itself",
	"file of a FUSE server that does not answer"};

const char *strange_name(int kind)
{
	return names[kind];
}

static int make_other(int kind, int own)
{
	switch (kind) {
	case 10:
		return memory(MFD_ALLOW_SEALING, 1 << 20, 0);
	case 11:
		return memory(MFD_ALLOW_SEALING, 1 << 20, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	case 12:
		return memory(MFD_HUGETLB, 2 << 20, 0);
	case 13:
		return memory(MFD_ALLOW_SEALING, (off_t)1 << 40, F_SEAL_SHRINK);
	case 14:
		return posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	case 15:
		return watching(own);
	case 16:
		return eventfd(0, EFD_CLOEXEC);
	case 17:
		return timer();
	case 18:
		return inotify_init1(IN_CLOEXEC);
	case 19:
		return signals();
	case 20:
		return of_process();
	case 21:
		return open("/", O_PATH | O_CLOEXEC);
	case 22:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case 23:
		return open("/dev/zero", O_RDWR | O_CLOEXEC);
	case 24:
		return fcntl(own, F_DUPFD_CLOEXEC, 3);
	default:
		return mounted ? open(mounted, O_RDONLY | O_CLOEXEC) : -1;
	}
}

int strange_make(int kind, int own)
{
	switch (kind) {
	case 0:
		return strange_lingering();
	case 1:
		return full_pipe();
	case 2:
		return listening();
	case 3:
		return connecting();
	case 4:
		return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	case 5:
		return pair_with(eventfd(0, EFD_CLOEXEC));
	case 6:
		return pair_with(-1);
	case 7:
		return pair_with(strange_lingering());
	case 8:
		return ring();
	case 9:
		return (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	default:
		return make_other(kind, own);
	}
}

/* ---- a file system ---- */

static bool answer(uint64_t unique, int error, const void *body, size_t bytes)
{
	char reply[512];
	struct fuse_out_header head = {(uint32_t)(sizeof head + bytes), error, unique};
	memcpy(reply, &head, sizeof head);
	if (bytes)
		memcpy(reply + sizeof head, body, bytes);
	return write(server, reply, sizeof head + bytes) == (ssize_t)(sizeof head + bytes);
}

static bool is_of_family(uint32_t thread)
{
	char path[40], line[128];
	int group = 0, parent = 0;
	snprintf(path, sizeof path, "/proc/%u/status", thread);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file)) {
		sscanf(line, "Tgid: %d", &group);
		sscanf(line, "PPid: %d", &parent);
	}
	if (file)
		fclose(file);
	return group == getpid() || parent == getpid();
}

/* Its root is a file, so that there is nothing to look up. */
static void *serve(void *argument)
{
	static char request[1 << 17];
	(void)argument;
	while (1) {
		const struct fuse_in_header *head = (const struct fuse_in_header *)request;
		if (read(server, request, sizeof request) < (ssize_t)sizeof *head) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return NULL;
		}
		struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
		struct fuse_open_out opened = {.fh = 1};
		if (head->opcode == FUSE_INIT)
			answer(head->unique, 0, &init, sizeof init);
		else if (head->opcode == FUSE_OPEN)
			answer(head->unique, 0, &opened, sizeof opened);
		else if ((head->opcode != FUSE_FLUSH && head->opcode != FUSE_GETATTR && head->opcode != FUSE_STATFS) ||
		         is_of_family(head->pid))
			answer(head->unique, -ENOSYS, NULL, 0);
	}
}

bool strange_mount(const char *file)
{
	char how[128];
	pthread_t thread;
	server = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (server < 0)
		return false;
	snprintf(how, sizeof how, "fd=%d,rootmode=100666,user_id=0,group_id=0,allow_other", server);
	if (unshare(CLONE_NEWNS) || mount("", "/", "", MS_REC | MS_PRIVATE, NULL) ||
	    mount("strange", file, "fuse", MS_NOSUID | MS_NODEV, how)) {
		close(server);
		return false;
	}
	return !pthread_create(&thread, NULL, serve, NULL);
}

void strange_leave_to_parent(void)
{
	close(server);
}

void strange_use_mounted(const char *file)
{
	mounted = file;
}
