"""Append-only ledger and events, renewal purity, legal moves, past overlaps (SPEC A6, F1, L)."""

from django.db import migrations

from leaseq.db import triggers


class Migration(migrations.Migration):
    dependencies = [("leaseq", "0001_initial")]

    operations = [
        migrations.RunSQL(sql="".join(triggers.FORWARD), reverse_sql=triggers.BACKWARD),
    ]
