/* The extension packer.native._native: its functions, each in the file that its comment names. */
#include "native.h"

#define ENTRY(name, doc) {#name, (PyCFunction)(void (*)(void))native_##name, METH_FASTCALL, doc}

static PyMethodDef methods[] = {
    /* random_permutation.c */
    ENTRY(permute, "As randomness.permute_numpy."),
    ENTRY(unpermute, "As randomness.unpermute_numpy."),
    /* gather.c */
    ENTRY(copy_rows, "As copy_numpy in read/gather.py."),
    ENTRY(read_rows, "As read_numpy in read/gather.py."),
    ENTRY(willneed_rows, "As willneed_numpy in read/gather.py."),
    /* resample.c */
    ENTRY(resample, "As resample_numpy in pixels/resampling.py."),
    ENTRY(channel_sums, "As channel_sums_opencv in convert/block_workers.py."),
    /* jpeg_restarts.c */
    ENTRY(jpeg_plain_shape, "As plain_shape in codecs/jpeg.py."),
    ENTRY(jpeg_part, "As part in codecs/jpeg_parts.py."),
    ENTRY(jpeg_with_restarts, "As with_markers in codecs/jpeg_parts.py."),
    /* csv.c */
    ENTRY(parse_csv, "As _parse_plain in tables/reading/record_parser.py."),
    ENTRY(end_of_csv_records, "As end_of_records in tables/reading/record_parser.py."),
    /* table_sums.c */
    ENTRY(block_sums, "As block_sums in tables/transform/column_sums.py."),
    /* augment.c */
    ENTRY(augment, "As augment/passes/native_pass.py calls it."),
    {NULL, NULL, 0, NULL},
};

static int
start(PyObject *module)
{
    (void)module;
    native_choose_processor();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)start},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "packer.native._native", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
