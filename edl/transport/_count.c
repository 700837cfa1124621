/* The same as `Count` in shared_page.py, which tells what it is for; without a compiler, that one serves.
 *
 * The buffers keep the page mapped as long as there are pointers into it. The words are aligned, so that a plain load
 * or store moves each whole; another process writes `attention` and reads `step`, and concludes nothing from their
 * order. Everything here runs with the GIL held.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>

typedef struct {
    PyObject_HEAD
    long long *step;
    const long long *attention;
    long long usual_until;
    Py_buffer step_buffer;
    Py_buffer attention_buffer;
} Count;

static long long *
take_word(PyObject *source, Py_buffer *buffer)
{
    if (PyObject_GetBuffer(source, buffer, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    if (buffer->len != sizeof(long long) || (uintptr_t)buffer->buf % sizeof(long long) != 0) {
        PyErr_SetString(PyExc_ValueError, "not one aligned word of 8 bytes");
        return NULL;
    }
    return buffer->buf;
}

static PyObject *
Count_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *step, *attention;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Count() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "OO:Count", &step, &attention)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Count *self = (Count *)allocate(type, 0); /* all zero: releasing a buffer that was not taken does nothing */
    if (self == NULL) {
        return NULL;
    }
    self->step = take_word(step, &self->step_buffer);
    self->attention = self->step == NULL ? NULL : take_word(attention, &self->attention_buffer);
    if (self->attention == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
Count_dealloc(Count *self)
{
    PyBuffer_Release(&self->step_buffer);
    PyBuffer_Release(&self->attention_buffer);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type); /* of which each instance holds a reference, as it is no static type */
}

static PyObject *
Count_advance(Count *self, PyObject *Py_UNUSED(nothing))
{
    long long step = *self->step + 1;
    if (step >= self->usual_until || step >= __atomic_load_n(self->attention, __ATOMIC_RELAXED)) {
        Py_RETURN_FALSE;
    }
    __atomic_store_n(self->step, step, __ATOMIC_RELAXED);
    Py_RETURN_TRUE;
}

static PyObject *
Count_get_step(Count *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(*self->step);
}

static int
Count_set_step(Count *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a count has a step");
        return -1;
    }
    long long step = PyLong_AsLongLong(value);
    if (step == -1 && PyErr_Occurred()) {
        return -1;
    }
    __atomic_store_n(self->step, step, __ATOMIC_RELAXED);
    return 0;
}

static PyMethodDef Count_methods[] = {
    {"advance", (PyCFunction)Count_advance, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef Count_properties[] = {
    {"step", (getter)Count_get_step, (setter)Count_set_step, NULL, NULL},
    {NULL},
};

static PyMemberDef Count_members[] = {
    {"usual_until", T_LONGLONG, offsetof(Count, usual_until), 0, NULL},
    {NULL},
};

static PyType_Slot Count_slots[] = {
    {Py_tp_new, Count_new},
    {Py_tp_dealloc, Count_dealloc},
    {Py_tp_methods, Count_methods},
    {Py_tp_getset, Count_properties},
    {Py_tp_members, Count_members},
    {0, NULL},
};

static PyType_Spec Count_spec = {
    .name = "edl.transport._count.Count",
    .basicsize = sizeof(Count),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Count_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_count",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__count(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made == NULL ? NULL : PyType_FromSpec(&Count_spec);
    if (type == NULL || PyModule_AddType(made, (PyTypeObject *)type) < 0) {
        Py_CLEAR(made);
    }
    Py_XDECREF(type);
    return made;
}
