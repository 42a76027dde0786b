/* A vkqueue client in one file of C, written from docs/protocol.md alone: no library but libc, MessagePack by hand.
 *
 *     cc -std=c11 -Wall -Wextra -Werror client.c -o client && ./client SOCKET AXPY.spv
 *
 * It loads a kernel (y[i] += k * x[i]), makes buffers, launches with handles, with a range and with transient entries,
 * reads results back, meets a few errors, and frees everything. Everything that does not need an answer to go on is sent
 * without waiting. It prints "ok" and exits 0, or says what was wrong and exits 1.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int fd;

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

#define CHECK(condition, ...) do { if (!(condition)) die(__VA_ARGS__); } while (0)

/* ---- MessagePack, out ------------------------------------------------------------------------------------------ */

static uint8_t *out;
static size_t out_size, out_room;

static void put(const void *bytes, size_t count)
{
    if (out_size + count > out_room) {
        out_room = (out_size + count) * 2;
        out = realloc(out, out_room);
        CHECK(out, "no memory");
    }
    memcpy(out + out_size, bytes, count);
    out_size += count;
}

static void put_byte(unsigned byte)
{
    uint8_t b = (uint8_t)byte;
    put(&b, 1);
}

static void put_be(uint64_t value, int bytes)
{
    while (bytes--)
        put_byte(value >> (8 * bytes) & 0xff);
}

static void put_uint(uint64_t value)
{
    if (value < 0x80)
        put_byte((unsigned)value);
    else if (value <= 0xff)
        put_byte(0xcc), put_be(value, 1);
    else if (value <= 0xffff)
        put_byte(0xcd), put_be(value, 2);
    else if (value <= 0xffffffff)
        put_byte(0xce), put_be(value, 4);
    else
        put_byte(0xcf), put_be(value, 8);
}

static void put_str(const char *text)
{
    size_t length = strlen(text);
    CHECK(length < 32, "a string too long for this client: %s", text);
    put_byte(0xa0 | (unsigned)length);
    put(text, length);
}

static void put_bin(const void *bytes, size_t count)
{
    put_byte(0xc6);
    put_be(count, 4);
    put(bytes, count);
}

static void put_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put_byte(0xcb);
    put_be(bits, 8);
}

static void put_array(unsigned count) { put_byte(0x90 | count); }
static void put_map(unsigned count) { put_byte(0x80 | count); }

static uint32_t last_msgid;

/* [0, msgid, method, [{count parameters}]]: the caller puts the parameters. */
static uint32_t request(const char *method, unsigned count)
{
    put_array(4);
    put_uint(0);
    put_uint(++last_msgid);
    put_str(method);
    put_array(1);
    put_map(count);
    return last_msgid;
}

static void send_all(void)
{
    for (size_t sent = 0; sent < out_size;) {
        ssize_t n = write(fd, out + sent, out_size - sent);
        CHECK(n > 0, "write: %s", strerror(errno));
        sent += (size_t)n;
    }
    out_size = 0;
}

/* ---- MessagePack, in ------------------------------------------------------------------------------------------- */

static uint8_t *in;
static size_t in_size, in_room, in_at; /* in_at: the next byte to be looked at */

static const uint8_t *need(size_t count)
{
    while (in_size - in_at < count) {
        if (in_room < in_at + count + 65536) {
            in_room = (in_at + count) * 2 + 65536;
            in = realloc(in, in_room);
            CHECK(in, "no memory");
        }
        ssize_t n = read(fd, in + in_size, in_room - in_size);
        CHECK(n > 0, n ? "read: %s" : "the daemon closed the connection", strerror(errno));
        in_size += (size_t)n;
    }
    in_at += count;
    return in + in_at - count;
}

static uint64_t take_be(int bytes)
{
    const uint8_t *p = need((size_t)bytes);
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | p[i];
    return value;
}

enum kind { NIL, BOOL, UINT, INT, FLOAT, STR, BIN, ARRAY, MAP, EXT };

struct value {
    enum kind kind;
    uint64_t number;     /* BOOL, UINT, INT (two's complement), or the count of ARRAY and MAP */
    size_t at, length;   /* STR and BIN: where in `in` */
};

static struct value sized(enum kind kind, size_t length)
{
    struct value v = {kind, 0, in_at, length};
    need(length);
    return v;
}

/* One value; of an array or a map only its header. */
static struct value take(void)
{
    unsigned b = *need(1);
    struct value v = {NIL, 0, 0, 0};
    if (b < 0x80) { v.kind = UINT; v.number = b; }
    else if (b < 0x90) { v.kind = MAP; v.number = b & 0x0f; }
    else if (b < 0xa0) { v.kind = ARRAY; v.number = b & 0x0f; }
    else if (b < 0xc0) return sized(STR, b & 0x1f);
    else if (b >= 0xe0) { v.kind = INT; v.number = (uint64_t)(int64_t)(int8_t)b; }
    else switch (b) {
    case 0xc0: break;
    case 0xc2: case 0xc3: v.kind = BOOL; v.number = b & 1; break;
    case 0xc4: return sized(BIN, take_be(1));
    case 0xc5: return sized(BIN, take_be(2));
    case 0xc6: return sized(BIN, take_be(4));
    case 0xca: v.kind = FLOAT; v.number = take_be(4); break;
    case 0xcb: v.kind = FLOAT; v.number = take_be(8); break;
    case 0xcc: v.kind = UINT; v.number = take_be(1); break;
    case 0xcd: v.kind = UINT; v.number = take_be(2); break;
    case 0xce: v.kind = UINT; v.number = take_be(4); break;
    case 0xcf: v.kind = UINT; v.number = take_be(8); break;
    case 0xd0: v.kind = INT; v.number = (uint64_t)(int64_t)(int8_t)take_be(1); break;
    case 0xd1: v.kind = INT; v.number = (uint64_t)(int64_t)(int16_t)take_be(2); break;
    case 0xd2: v.kind = INT; v.number = (uint64_t)(int64_t)(int32_t)take_be(4); break;
    case 0xd3: v.kind = INT; v.number = take_be(8); break;
    case 0xd9: return sized(STR, take_be(1));
    case 0xda: return sized(STR, take_be(2));
    case 0xdb: return sized(STR, take_be(4));
    case 0xdc: v.kind = ARRAY; v.number = take_be(2); break;
    case 0xdd: v.kind = ARRAY; v.number = take_be(4); break;
    case 0xde: v.kind = MAP; v.number = take_be(2); break;
    case 0xdf: v.kind = MAP; v.number = take_be(4); break;
    default: die("a byte that no value of this protocol begins with: %02x", b);
    }
    return v;
}

static void skip(void)
{
    for (uint64_t left = 1; left--;) {
        struct value v = take();
        if (v.kind == ARRAY)
            left += v.number;
        else if (v.kind == MAP)
            left += 2 * v.number;
    }
}

static int is(struct value v, const char *text)
{
    return v.kind == STR && v.length == strlen(text) && !memcmp(in + v.at, text, v.length);
}

/* Go into the map that comes next, to the value of `key`; whether it is there. Other entries are passed over. */
static int enter(const char *key)
{
    size_t start = in_at;
    struct value map = take();
    CHECK(map.kind == MAP, "a map was expected for %s", key);
    for (uint64_t i = 0; i < map.number; i++) {
        if (is(take(), key))
            return 1;
        skip();
    }
    in_at = start;
    return 0;
}

/* ---- Responses: they come in any order, so all are kept; this client is short ---------------------------------- */

static struct { uint32_t msgid; size_t error, result; } kept[256];
static unsigned kept_count;

/* Read one response, and remember where its parts are. */
static void receive(void)
{
    struct value message = take();
    CHECK(message.kind == ARRAY, "a message is an array");
    uint64_t kind = take().number;
    if (kind == 2) {
        struct value method = take();
        die("notification %.*s from the daemon", (int)method.length, in + method.at);
    }
    CHECK(kind == 1 && message.number == 4, "no response: %u entries, kind %u", (unsigned)message.number, (unsigned)kind);
    CHECK(kept_count < 256, "too many responses for this client");
    kept[kept_count].msgid = (uint32_t)take().number;
    kept[kept_count].error = in_at;
    skip();
    kept[kept_count].result = in_at;
    skip();
    kept_count++;
}

static unsigned find(uint32_t msgid)
{
    for (;;) {
        for (unsigned i = 0; i < kept_count; i++)
            if (kept[i].msgid == msgid)
                return i;
        receive();
    }
}

/* Where new messages are read from, while `in_at` wanders through an old one. */
static size_t saved;
static void look_at(size_t place) { saved = in_at; in_at = place; }
static void look_away(void) { in_at = saved; }

/* The response's result; dies of an error. The caller looks away when it is through. */
static void result_of(uint32_t msgid)
{
    unsigned i = find(msgid);
    look_at(kept[i].error);
    if (take().kind != NIL) {
        in_at = kept[i].error;
        CHECK(enter("message"), "request %u failed, and does not say why", msgid);
        struct value text = take();
        die("request %u: %.*s", msgid, (int)text.length, in + text.at);
    }
    in_at = kept[i].result;
}

static void succeeds(uint32_t msgid)
{
    result_of(msgid);
    look_away();
}

/* The response must be an error with this code. */
static void fails(uint32_t msgid, const char *code)
{
    unsigned i = find(msgid);
    look_at(kept[i].error);
    CHECK(enter("code"), "request %u should have failed with %s", msgid, code);
    struct value came = take();
    CHECK(is(came, code), "request %u: expected %s, got %.*s", msgid, code, (int)came.length, in + came.at);
    look_away();
}

/* A bin of exactly `count` bytes under `key` of the result (of `outputs`: the one entry of the list). */
static void bytes_of(uint32_t msgid, const char *key, void *to, size_t count)
{
    result_of(msgid);
    CHECK(enter(key), "request %u has no %s", msgid, key);
    struct value v = take();
    if (v.kind == ARRAY) {
        CHECK(v.number == 1, "request %u: one output was expected", msgid);
        v = take();
    }
    CHECK(v.kind == BIN && v.length == count, "request %u: %zu bytes of %s expected", msgid, count, key);
    memcpy(to, in + v.at, count);
    look_away();
}

/* ---- The conversation ------------------------------------------------------------------------------------------ */

enum { N = 64, MODULE = 1, X = 2, Y = 3, BOTH = 4 };

/* {module, args, scalars, grid} with what comes for args put by the caller in between. */
static uint32_t dispatch_begin(void)
{
    uint32_t msgid = request("dispatch", 4);
    put_str("module"), put_uint(MODULE);
    put_str("args"), put_array(2);
    return msgid;
}

static void dispatch_end(double k)
{
    put_str("scalars"), put_array(2), put_uint(N), put_double(k);
    put_str("grid"), put_array(1), put_uint(1);
}

static uint32_t with_handle(const char *method, const char *name, uint64_t handle)
{
    uint32_t msgid = request(method, 1);
    put_str(name), put_uint(handle);
    return msgid;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: %s SOCKET AXPY.spv", argv[0]);
    FILE *file = fopen(argv[2], "rb");
    CHECK(file, "%s: %s", argv[2], strerror(errno));
    static uint8_t spirv[1 << 20];
    size_t spirv_size = fread(spirv, 1, sizeof spirv, file);
    fclose(file);

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    CHECK(strlen(argv[1]) < sizeof address.sun_path, "the path is too long");
    strcpy(address.sun_path, argv[1]);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address), "%s: %s", argv[1], strerror(errno));

    float x[N], y[N], got[2 * N], zeros[N] = {0};
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 1.0f;
    }

    /* All of this leaves in one piece. */
    uint32_t early = request("ping", 0); /* before hello: protocol */
    uint32_t hello = request("hello", 2);
    put_str("protocol"), put_uint(1);
    put_str("client"), put_str("client.c");
    uint32_t load = request("module.load", 2);
    put_str("spirv"), put_bin(spirv, spirv_size);
    put_str("as"), put_uint(MODULE);
    uint32_t create_x = request("buffer.create", 2);
    put_str("data"), put_bin(x, sizeof x);
    put_str("as"), put_uint(X);
    uint32_t create_y = request("buffer.create", 2);
    put_str("data"), put_bin(y, sizeof y);
    put_str("as"), put_uint(Y);
    uint32_t handles = dispatch_begin();
    put_uint(X), put_uint(Y);
    dispatch_end(2.0);
    uint32_t read_y = with_handle("buffer.read", "buffer", Y);
    uint32_t transient = dispatch_begin();
    put_map(1), put_str("in"), put_bin(x, sizeof x);
    put_map(1), put_str("inout"), put_bin(y, sizeof y);
    dispatch_end(3.0);
    send_all();

    fails(early, "protocol");
    succeeds(hello);
    result_of(load);
    CHECK(enter("kernels") && enter("main") && enter("push_constant_bytes"), "the reflection lacks something");
    CHECK(take().number == 8, "the kernel has 8 bytes of push constants");
    look_away();
    result_of(create_x);
    CHECK(enter("buffer") && take().number == X, "the buffer has the handle that was asked for");
    look_away();
    succeeds(create_y);
    succeeds(handles);
    bytes_of(read_y, "data", got, sizeof y);
    for (int i = 0; i < N; i++)
        CHECK(got[i] == 1.0f + 2.0f * (float)i, "handles: y[%d] is %g", i, got[i]);
    bytes_of(transient, "outputs", got, sizeof y);
    for (int i = 0; i < N; i++)
        CHECK(got[i] == 1.0f + 3.0f * (float)i, "inout: y[%d] is %g", i, got[i]);

    /* A range: the second half of a buffer of two, at an offset that every device allows. */
    uint32_t create_both = request("buffer.create", 2);
    put_str("size"), put_uint(2 * sizeof y);
    put_str("as"), put_uint(BOTH);
    uint32_t write_x = request("buffer.write", 2);
    put_str("buffer"), put_uint(BOTH);
    put_str("data"), put_bin(x, sizeof x);
    uint32_t range = dispatch_begin();
    put_array(3), put_uint(BOTH), put_uint(0), put_uint(sizeof x);
    put_array(3), put_uint(BOTH), put_uint(sizeof x), put_uint(sizeof y);
    dispatch_end(-1.0);
    uint32_t read_both = with_handle("buffer.read", "buffer", BOTH);
    /* And what fails, each alone. */
    uint32_t no_method = request("buffer.fill", 0);
    uint32_t no_buffer = dispatch_begin();
    put_uint(X), put_uint(99);
    dispatch_end(1.0);
    uint32_t wrong_order = dispatch_begin(); /* the kernel does not write its first binding */
    put_map(1), put_str("inout"), put_bin(x, sizeof x);
    put_uint(Y);
    dispatch_end(1.0);
    uint32_t unknown = request("buffer.read", 2);
    put_str("buffer"), put_uint(X);
    put_str("ofset"), put_uint(0);
    uint32_t burnt = request("buffer.create", 2);
    put_str("size"), put_uint(4);
    put_str("as"), put_uint(BOTH);
    uint32_t second = request("hello", 2);
    put_str("protocol"), put_uint(1);
    put_str("client"), put_str("again");
    send_all();

    succeeds(create_both);
    succeeds(write_x);
    succeeds(range);
    bytes_of(read_both, "data", got, 2 * sizeof y);
    CHECK(!memcmp(got, x, sizeof x), "the range that is read is left alone");
    for (int i = 0; i < N; i++)
        CHECK(got[N + i] == zeros[i] - (float)i, "range: y[%d] is %g", i, got[N + i]);
    fails(no_method, "unknown_method");
    fails(no_buffer, "not_found");
    fails(wrong_order, "invalid");
    fails(unknown, "invalid");
    fails(burnt, "invalid");
    fails(second, "invalid");

    uint32_t frees[] = {
        with_handle("buffer.free", "buffer", X),
        with_handle("buffer.free", "buffer", Y),
        with_handle("buffer.free", "buffer", BOTH),
        with_handle("module.unload", "module", MODULE),
    };
    uint32_t gone = with_handle("buffer.read", "buffer", X);
    uint32_t cancel = with_handle("cancel", "msgid", gone);
    send_all();
    for (unsigned i = 0; i < 4; i++)
        succeeds(frees[i]);
    fails(gone, "not_found");
    result_of(cancel);
    CHECK(enter("cancelled"), "cancel says whether");
    CHECK(take().kind == BOOL, "cancelled is a boolean");
    look_away();

    /* A key that is no string: the daemon says why, and closes. */
    static const uint8_t broken[] = {0x94, 0x00, 0x7f, 0xa4, 'p', 'i', 'n', 'g', 0x91, 0x81, 0x01, 0x02};
    put(broken, sizeof broken);
    send_all();
    struct value notice = take();
    CHECK(notice.kind == ARRAY && notice.number == 3 && take().number == 2 && is(take(), "error"), "no last word");
    CHECK(take().number == 1 && enter("code") && is(take(), "protocol"), "the last word is `protocol`");
    printf("ok\n");
    return 0;
}
