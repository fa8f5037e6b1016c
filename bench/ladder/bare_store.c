/* The least that a process can pay for relaying Produces and keeping them: `bare_store PORT UPSTREAM_PORT MEMORY_BYTES`.
 *
 * Owns one listening socket, a connection to the upstream for each client, both on the loopback address, and a shared
 * mapping of MEMORY_BYTES (memfd "stored"), as an arena is. Passes whole frames both ways. Copies each Produce request
 * into the mapping once, when its answer has come, one behind another, round and round. It understands nothing of a
 * frame but where it ends and its API key; an answer with an error counts as well. Produces with acks=0 have no answer:
 * they end the order of requests and answers, and must not be sent.
 *
 * Invariants: at most HELD_MAX bytes are held in each direction of a connection, and nothing is read beyond them; either
 * side's end ends both; it ends by a signal, or with a word to stderr where it cannot go on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PREFIX = 4, PRODUCE = 0, HELD_MAX = 4 << 20, FIRST_MOVE = 1 << 16, FDS_MAX = 1 << 14, EVENTS = 64 };

/* One direction: [kept, sent) were passed on and wait for their answers, [sent, whole) are frames to be passed on,
 * [whole, end) is the beginning of one. Answers are kept for nothing. */
struct flow {
	int from, to;
	bool is_kept;
	uint32_t awaited; /* epoll events of `from` */
	struct flow *back;
	size_t kept, sent, whole, end;
	char bytes[HELD_MAX];
};

static struct flow *flows[FDS_MAX]; /* by `from` */
static char *memory;
static size_t memory_bytes, stored_at;
static int epoll;

static size_t frame_bytes(const char *frame)
{
	uint32_t length;

	memcpy(&length, frame, PREFIX);
	return PREFIX + (size_t)ntohl(length);
}

static void store(const char *frame, size_t size)
{
	if (size > memory_bytes)
		errx(1, "a request of %zu bytes does not fit", size);
	if (size > memory_bytes - stored_at)
		stored_at = 0;
	memcpy(memory + stored_at, frame, size);
	stored_at += size;
}

/* The oldest request has its answer: 0, or -1 where there is none. */
static int acknowledge(struct flow *requests)
{
	const char *frame = requests->bytes + requests->kept;
	size_t size;
	uint16_t api_key;

	if (requests->kept == requests->sent)
		return -1;
	size = frame_bytes(frame);
	memcpy(&api_key, frame + PREFIX, sizeof api_key);
	if (ntohs(api_key) == PRODUCE)
		store(frame, size);
	requests->kept += size;
	return 0;
}

/* Begin again at the front, where that is free, or costs a fraction of what has passed. */
static void make_room(struct flow *flow)
{
	size_t moved = flow->end - flow->kept, by = flow->kept;

	if (moved && flow->end < HELD_MAX && (by < FIRST_MOVE || by < 4 * moved))
		return;
	memmove(flow->bytes, flow->bytes + by, moved);
	flow->kept -= by;
	flow->sent -= by;
	flow->whole -= by;
	flow->end -= by;
}

static int push(struct flow *flow)
{
	ssize_t sent = 0;

	if (flow->sent < flow->whole)
		sent = send(flow->to, flow->bytes + flow->sent, flow->whole - flow->sent, MSG_NOSIGNAL);
	if (sent < 0)
		return errno == EAGAIN ? 0 : -1;
	flow->sent += (size_t)sent;
	if (!flow->is_kept)
		flow->kept = flow->sent;
	return 0;
}

static int pull(struct flow *flow)
{
	ssize_t got;

	make_room(flow);
	if (flow->end == HELD_MAX)
		return 0;
	got = read(flow->from, flow->bytes + flow->end, HELD_MAX - flow->end);
	if (got <= 0)
		return got < 0 && errno == EAGAIN ? 0 : -1;
	flow->end += (size_t)got;
	while (flow->end - flow->whole >= PREFIX) {
		size_t size = frame_bytes(flow->bytes + flow->whole);

		if (flow->end - flow->whole < size)
			break;
		if (!flow->is_kept && acknowledge(flow->back))
			return -1;
		flow->whole += size;
	}
	if (flow->end == HELD_MAX && !flow->whole) /* by one frame */
		return -1;
	return push(flow);
}

static void await(struct flow *flow)
{
	bool has_room = flow->end - flow->kept < HELD_MAX, waits = flow->back->sent < flow->back->whole;
	struct epoll_event event = { .events = (has_room ? EPOLLIN : 0u) | (waits ? EPOLLOUT : 0u), .data.fd = flow->from };

	if (event.events == flow->awaited)
		return;
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, flow->from, &event))
		err(1, "epoll_ctl");
	flow->awaited = event.events;
}

static void close_both(struct flow *flow)
{
	struct flow *back = flow->back;

	flows[flow->from] = flows[back->from] = NULL;
	close(flow->from);
	close(back->from);
	free(flow);
	free(back);
}

static int open_socket(const char *port, bool listens)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0)
		err(1, "socket");
	if (!listens && !connect(fd, (void *)&at, sizeof at))
		return fd;
	if (listens && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) && !bind(fd, (void *)&at, sizeof at)
	    && !listen(fd, SOMAXCONN))
		return fd;
	if (listens)
		err(1, "port %s", port);
	close(fd);
	return -1;
}

static struct flow *add(int from, int to, bool is_kept)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = from };
	struct flow *flow = malloc(sizeof *flow);
	int on = 1;

	if (!flow || from >= FDS_MAX || epoll_ctl(epoll, EPOLL_CTL_ADD, from, &event))
		err(1, "connection %d", from);
	setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	memset(flow, 0, offsetof(struct flow, bytes));
	flow->from = from;
	flow->to = to;
	flow->is_kept = is_kept;
	flow->awaited = EPOLLIN;
	return flows[from] = flow;
}

static void take(int listening, const char *upstream_port)
{
	int client = accept4(listening, NULL, NULL, SOCK_NONBLOCK), broker;

	if (client < 0)
		err(1, "accept");
	broker = open_socket(upstream_port, false);
	if (broker < 0) {
		close(client);
		return;
	}
	if (fcntl(broker, F_SETFL, O_NONBLOCK))
		err(1, "fcntl");
	add(client, broker, true)->back = add(broker, client, false);
	flows[broker]->back = flows[client];
}

static void handle(struct epoll_event event)
{
	struct flow *flow = flows[event.data.fd];

	if (!flow) /* ended by an event of the same wait */
		return;
	if (((event.events & EPOLLOUT) && push(flow->back)) || ((event.events & ~EPOLLOUT) && pull(flow))) {
		close_both(flow);
		return;
	}
	await(flow);
	await(flow->back);
}

int main(int argc, char **argv)
{
	struct epoll_event events[EVENTS], first = { .events = EPOLLIN };
	int listening, fd;

	if (argc != 4)
		errx(1, "usage: bare_store PORT UPSTREAM_PORT MEMORY_BYTES");
	memory_bytes = strtoul(argv[3], NULL, 10);
	fd = memfd_create("stored", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)memory_bytes))
		err(1, "%s bytes of memory", argv[3]);
	memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (memory == MAP_FAILED)
		err(1, "%s bytes of memory", argv[3]);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	listening = first.data.fd = open_socket(argv[1], true);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listening, &first))
		err(1, "epoll");
	for (;;) {
		int count = epoll_wait(epoll, events, EVENTS, -1);

		if (count < 0 && errno != EINTR)
			err(1, "epoll_wait");
		for (int i = 0; i < count; i++)
			if (events[i].data.fd == listening)
				take(listening, argv[2]);
			else
				handle(events[i]);
	}
}
